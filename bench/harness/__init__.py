"""The benchmark's own machinery: processes, the list of measurements, report and plot."""
