"""One address for agents: a chat API in front of the fleet, whose record of the tokens is what is trained."""
