"""Central training: privacy units, batches drawn at random, and the pipeline that feeds them to a device."""
