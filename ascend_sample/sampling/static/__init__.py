"""Steps at fixed addresses, for the graph of a device."""
