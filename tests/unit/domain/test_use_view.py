"""What the page shows of the agents' reports."""

from deviceshare.domain.answers.pod_view import view_of_use
from deviceshare.domain.objects.usage import MINUTES, UNKNOWN, DeviceHour, NodeUse

GPU = "nvidia.com/gpu"


def test_a_nodes_hour_is_the_mean_of_its_devices() -> None:
    """The newest minutes beside each other, whatever each device began with."""
    devices = [DeviceHour(GPU, 0, hour=[10, 20, 30]), DeviceHour(GPU, 1, hour=[UNKNOWN, 50]), DeviceHour(GPU, 2)]
    node = view_of_use(NodeUse("n1", devices=devices), detailed=True)
    assert node.hour == [10, 20, 40]
    assert [each.hour for each in node.devices] == [[10, 20, 30], [UNKNOWN, 50], []]


def test_a_brief_view_has_the_hour_of_the_node_alone() -> None:
    """And of each device what it does now."""
    devices = [DeviceHour(GPU, 0, utilization=7, hour=[5, 7])]
    node = view_of_use(NodeUse("n1", devices=devices), detailed=False)
    assert (node.hour, node.devices) == ([5, 7], [DeviceHour(GPU, 0, utilization=7)])


def test_numbers_that_no_driver_reports_are_left_out() -> None:
    """Whatever answers at an agent's address."""
    huge = DeviceHour(GPU, 0, utilization=10**9, hour=[10**9, -(10**9), *[5] * 500])
    odd = DeviceHour(GPU, 1, utilization=-1, hour=[-9, 999])
    first, second = view_of_use(NodeUse("n1", devices=[huge, odd]), detailed=True).devices
    assert (first.utilization, first.hour) == (None, [5] * MINUTES)
    assert (second.utilization, second.hour) == (None, [UNKNOWN, 100])
