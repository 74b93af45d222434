"""A process on the network: it sends scatterings and delivers messages in the order of stamps."""
