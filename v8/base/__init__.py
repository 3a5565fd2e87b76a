"""What all packages use: errors, words, files, records, registries, the network, the machine."""
