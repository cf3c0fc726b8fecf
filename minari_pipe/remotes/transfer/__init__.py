"""Transfer datasets between the local root and remotes, verified and resumable."""
