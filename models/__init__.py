"""What a model is: its versions, their facts, and how they come to be. Works with no server running."""
