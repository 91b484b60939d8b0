"""Update rules that two or more entries share."""
