"""What is changed in others' code: in torch where it forgets devices from outside (`upstream`), in the libraries that
choose a device by the names that they know (`libraries`), and what torch.compile is told of us (`dynamo`)."""
