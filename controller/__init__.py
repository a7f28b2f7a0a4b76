"""The controller: a Trial of any kind becomes its workload and ends with conditions and an observation."""
