"""The processes fit together: real workers, a real Redis, a stand-in provider, and somebody who kills them."""
