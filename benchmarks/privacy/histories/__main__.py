"""See `running`."""

from benchmarks.privacy.histories.running import main

if __name__ == "__main__":
    main()
