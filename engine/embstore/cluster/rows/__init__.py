"""Rows over sockets, between workers and servers."""
