"""What a balancer before a fleet costs a request."""
