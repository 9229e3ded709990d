"""The control plane of the tests on a real API server."""

from grpo_cluster.control_plane import CONTROLLERS, component_command

from .api_server import without_nodes


def test_pods_of_a_node_that_is_not_there_are_left_to_the_test():
    command = component_command(without_nodes(1), CONTROLLERS)
    assert "--controllers=*,-pod-garbage-collector-controller" in command
