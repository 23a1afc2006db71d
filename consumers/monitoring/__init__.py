"""Shows how the service is doing: metrics, probes, and a watchdog that ends it if it hangs."""
