"""Several engines that share the load: which of them a request goes to."""
