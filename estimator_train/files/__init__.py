"""Files: atomic writes, and where the files of the package are."""
