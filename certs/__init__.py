"""Certificates: issue, rotate, publish."""
