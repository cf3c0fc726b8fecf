"""The declarative pipeline: Hydra is the only author of configuration, DVC the only executor.

    conf/  --compose-->  pipelines/NAME/{params,dvc}.yaml  --dvc repro-->  pipelines/NAME/dvc.lock

Only this folder imports hydra, omegaconf or dvc. The modules follow the way of a run:
``compose`` (command line to config), ``params`` (config to checked parameters), ``graph``
(parameters to ``dvc.yaml``), ``driver`` (reproduce, then ``install``), and ``stages``, which DVC
runs as commands of their own.
"""
