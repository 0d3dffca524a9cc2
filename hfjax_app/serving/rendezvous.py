"""Rendezvous hashing (Thaler and Ravishankar, 1996): when a replica comes or goes, only its own sessions move."""

import hashlib


def weight(session: str, replica: str) -> bytes:
    """How much a replica suits a session: the largest of all replicas' weights wins."""
    return hashlib.sha256(f"{session}\0{replica}".encode()).digest()
