"""Tests that any backend can run: the protocol of drivers, and of the device as torch sees it.

Needs pytest. A backend's own tests are a few lines; `torchgraft new` writes them:

    from torchgraft.testing.protocol import DeviceProtocol, DriverProtocol

    @pytest.fixture(scope="module")
    def driver():
        return FooDriver()

    class TestDriver(DriverProtocol):
        pass
"""
