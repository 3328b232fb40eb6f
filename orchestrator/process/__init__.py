"""What the sessions that are worked on in one process share: loops, threads, leases, the pump, what it remembers of histories."""
