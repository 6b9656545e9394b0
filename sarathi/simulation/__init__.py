"""The simulated GPU: published device constants, model shapes and the time a round takes. No scheduling, no clock."""
