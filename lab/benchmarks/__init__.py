"""Programs that measure: they stand outside the installed packages."""
