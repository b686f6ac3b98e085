"""Who answers: one backend a file, made by `steps.policies.base.make_policy`."""
