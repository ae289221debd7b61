"""From a model's output to text, reasoning and tool calls."""
