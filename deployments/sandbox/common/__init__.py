"""What the sandbox services share: the frame around each, its faults and answers, and what they know of FHIR."""
