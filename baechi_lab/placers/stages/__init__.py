"""What placers of pipelines share: units of a graph, the devices they are cut over, the dynamic programmes."""
