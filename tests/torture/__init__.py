"""Hours of kills, zombies, broken brokers, cut networks, full disks and jumping clocks."""
