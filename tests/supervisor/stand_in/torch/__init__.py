"""Stands in for torch where a test starts ranks that need none: only its launcher is here."""
