"""What every client is served through, whichever way it comes: a request in, pieces of the answer out."""
