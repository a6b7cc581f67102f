"""Sources of backends that the config does not list: DNS, a watched file, Kubernetes."""
