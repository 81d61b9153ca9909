"""``transfer_load``: the input as one zip in a FHIR store, announced by a DocumentReference (document 3 §7)."""
