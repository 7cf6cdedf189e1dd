"""The claim protocol, a file for each page of docs/claims.md: bind, release, rebind, repair, reserve.

Every coroutine raises Conflict where somebody else wrote first, and ApiError where a request failed: whoever calls it
retries from the start. G is the group, L the NodeDevices of the node, P the pod, Q a DeviceQuota. Steps are numbered as
on that page, where `must` says what nothing can do without.
"""
