"""What a published repository states about its model: contract, provenance, results, card."""
