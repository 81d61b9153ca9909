"""What FHIR R4 says of its types, made of published packages: ``build.py`` makes it, ``README.md`` names them."""
