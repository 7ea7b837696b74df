"""Tests in a browser; a package, because a fixture lasts for all of its files and ends with them."""
