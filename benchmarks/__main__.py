"""``python -m benchmarks``; processes that a case starts import this module, not the cases."""

if __name__ == "__main__":
    from benchmarks.command import main

    main()
