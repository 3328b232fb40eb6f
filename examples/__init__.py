"""Examples: `README.md` lists them, `support.py` is an agent to read first, `demo.py` kills a worker under it."""
