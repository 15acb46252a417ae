"""The laboratory's harness: ``guests`` builds and boots, ``grid`` measures, ``figures`` draws."""
