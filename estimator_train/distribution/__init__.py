"""The devices, threads and distribution strategy of a run."""
