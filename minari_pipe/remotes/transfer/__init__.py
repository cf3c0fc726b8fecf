"""Carries datasets between the local root and remotes: verified, and on from where it was."""
