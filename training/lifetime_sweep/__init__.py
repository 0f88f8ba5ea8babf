"""Lifetimes side by side: fresh processes, one after the other, that are equal in one thing."""
