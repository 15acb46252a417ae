"""The benchmark harness: processes, the list of measurements, report and plot."""
