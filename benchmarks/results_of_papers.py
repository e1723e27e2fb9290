"""Δm (%) as printed in the tables of FedHCA² (CVPR 2024), for docs/results.md: Swin-T, 512×512, 100 rounds, one run."""

# Tables 1 and 2, and supplementary table 1: PASCAL-Context clients with one task each and a NYUD-v2 client with four;
# one, two or four clients of each kind. "2" is the second scenario, in which the data sets change roles.
PAPER = {
    "1c": {
        "local": 0.0,
        "fedavg": -11.76,
        "fedprox": -10.68,
        "fedper": -1.11,
        "ditto": -5.57,
        "fedamp": 1.47,
        "matfl": -0.46,
        "fedhca2": 2.18,
    },
    "2c": {
        "local": 0.0,
        "fedavg": -13.95,
        "fedprox": -15.2,
        "fedper": -1.89,
        "fedamp": 0.91,
        "matfl": -1.3,
        "fedhca2": 4.7,
    },
    "4c": {
        "local": 0.0,
        "fedavg": -16.82,
        "fedprox": -24.04,
        "fedper": -2.96,
        "fedamp": 2.36,
        "matfl": -1.77,
        "fedhca2": 6.36,
    },
    "2": {
        "local": 0.0,
        "fedavg": -7.56,
        "fedprox": -8.12,
        "fedper": -0.16,
        "ditto": -4.67,
        "fedamp": 0.27,
        "matfl": -0.16,
        "fedhca2": 0.75,
    },
}

# Table 3 and supplementary tables 4 to 8: a row, what it changes in `fedhca2`, and Δm by scenario.
SENSITIVITY = [
    ("as in the paper: c = 0.4, α and β start at 0.1 and learn at rate 0.01", {}, {"1c": 2.18, "2": 0.75}),
    ("encoders alone", {"method.decoder": None}, {"1c": 1.89}),
    ("decoders alone", {"method.encoder": None}, {"1c": 1.80}),
    ("c = 0.1", {"method.encoder.c": 0.1}, {}),
    ("c = 0.2", {"method.encoder.c": 0.2}, {"1c": 2.02, "2": 0.42}),
    ("c = 0.6", {"method.encoder.c": 0.6}, {"1c": 1.76, "2": 0.45}),
    ("c = 0.8", {"method.encoder.c": 0.8}, {"1c": 1.69, "2": 0.48}),
    ("c = 0.9", {"method.encoder.c": 0.9}, {}),
    ("α and β start at 0.01", {"method.encoder.alpha": 0.01, "method.decoder.beta": 0.01}, {"1c": 1.67, "2": 0.62}),
    ("α and β start at 0.5", {"method.encoder.alpha": 0.5, "method.decoder.beta": 0.5}, {"1c": 1.91, "2": 0.57}),
    ("α and β start at 1", {"method.encoder.alpha": 1, "method.decoder.beta": 1}, {"1c": 2.02, "2": 0.55}),
    ("α starts at 1, β at 0.1", {"method.encoder.alpha": 1}, {}),
    ("β starts at 1, α at 0.1", {"method.decoder.beta": 1}, {}),
    ("α and β stay at 0.1", {"method.weights.learn": False}, {}),
    ("α and β learn at rate 0.005", {"method.weights.lr": 0.005}, {"1c": 2.00}),
    ("α and β learn at rate 0.05", {"method.weights.lr": 0.05}, {"1c": 1.84}),
    ("α and β learn at rate 0.1", {"method.weights.lr": 0.1}, {"1c": 1.85}),
]
