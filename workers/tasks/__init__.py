"""Tasks: plan, approvals, steps, checkpoints. What a task is stands in ``broker.task_model``."""
