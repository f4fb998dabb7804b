"""Which folders are packages; setup.cfg says the rest.

The folder `kernels` installs as `minitransformer_kernels`, since the import name `kernels` belongs
to another distribution, and `tutorials` as `minitransformer_lessons`. setup.cfg can find packages
only under the names that their folders have.
"""

from setuptools import find_packages, setup

FOLDERS = {
    "minitransformer": "minitransformer",
    "minitransformer_kernels": "kernels",
    "minitransformer_lessons": "tutorials",
}

setup(
    package_dir=FOLDERS,
    packages=[
        ".".join(filter(None, (package, inner)))
        for package, folder in FOLDERS.items()
        for inner in ("", *find_packages(folder))
    ],
)
