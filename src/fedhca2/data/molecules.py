"""Molecules with measured affinities for protein targets: the files of MoleculeACE, or others of their form."""

from functools import cache
from hashlib import sha256
from math import isnan, nan
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from fedhca2.config import suggest
from fedhca2.data.dataset import Split
from fedhca2.data.files import BrokenFileError, MissingFileError, package_folder
from fedhca2.data.tables import cell_in, parse_number, read_rows
from fedhca2.tasks import LabelSpace


def _molecule(smiles: str) -> Any:
    try:
        from rdkit import Chem
    except ImportError:
        raise ImportError("RDKit is not installed; run: pip install 'fedhca2[molecules]'") from None
    with Chem.rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles) if isinstance(smiles, str) else None
    if molecule is None or not molecule.GetNumAtoms():
        raise ValueError(f"expected the SMILES of a molecule, got {smiles!r:.80}")
    return molecule


@cache
def fingerprint(smiles: str) -> NDArray[np.uint8]:
    """The Morgan fingerprint of a molecule, of radius 2; raises ValueError if its SMILES does not parse."""
    molecule = _molecule(smiles)
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    bits: NDArray[np.uint8] = GetMorganGenerator(radius=2, fpSize=1024).GetFingerprintAsNumPy(molecule)
    return bits


@cache
def _is_for_validation(smiles: str) -> bool:
    """Whether a molecule's Murcko scaffold is for validation: about a fifth of all, the same on every machine."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    untyped: Any = MurckoScaffold
    return int.from_bytes(sha256(untyped.MurckoScaffoldSmiles(mol=_molecule(smiles)).encode()).digest()[:4]) % 5 == 0


class Molecules:
    """Molecules as Morgan fingerprints, with a value for each of some targets: pKi or pEC50, higher if more potent.

    A target is a CSV file with the columns `smiles`, `y` (minus the logarithm of nanomoles per litre) and `split`
    (train or test).

    :param targets: names of files, such as CHEMBL204_Ki.
    :param folder: the folder with these files; by default those of MoleculeACE.
    :param split_by: file: by the column `split`; scaffold: about a fifth of all Murcko scaffolds is held out, the same
        ones for every target.
    :param most: the most molecules of a target for training.
    :param seed: seed with which these are drawn.
    """

    shape = (1024,)
    cache = True  # the default of the setting
    encode = staticmethod(fingerprint)

    def __init__(
        self,
        split: Split,
        targets: Annotated[list[str], Field(min_length=1)],
        folder: Path | None = None,
        split_by: Literal["file", "scaffold"] = "file",
        most: PositiveInt | None = None,
        seed: int = 0,
    ) -> None:
        chosen, self.labels = {}, dict[str, LabelSpace]()
        if folder is None:  # the package itself would need many others
            hint = "pip install --no-deps MoleculeACE, or set `folder` to other files"
            folder = package_folder("MoleculeACE", hint) / "Data" / "benchmark_data"
        for target in targets:
            path = folder / f"{target}.csv"
            measured = _read_measurements(path, split_by == "scaffold")
            molecules = list(measured["train"].items())
            order = np.random.default_rng([seed, *target.encode()]).permutation(len(molecules))[:most]
            training = dict(molecules[i] for i in sorted(order))
            if (count := len({*training.values()})) < 2:
                expected = "expected 2 or more different numbers to train on"
                raise BrokenFileError(path, f"column 'y': {expected}, got {count}")
            self.labels[target] = LabelSpace(1)
            chosen[target] = training if split == "train" else measured["val"]
        self.ids = list(dict.fromkeys(smiles for values in chosen.values() for smiles in values))
        self.values = {target: [each.get(smiles, nan) for smiles in self.ids] for target, each in chosen.items()}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input": fingerprint(self.ids[index]), **{name: each[index] for name, each in self.values.items()}}


def _read_measurements(path: Path, by_scaffold: bool) -> dict[str, dict[str, float]]:
    """The values of a target's file, by split and SMILES."""
    if not path.is_file():
        targets = [each.stem for each in sorted(path.parent.glob("*.csv"))]
        hint = suggest(path.stem, targets) if targets else f"No CSV file is in {path.parent}"
        raise MissingFileError(path, f"expected the measurements of a target, got no file. {hint}")
    values_by_split: dict[str, dict[str, float]] = {"train": {}, "val": {}}
    for line, row in read_rows(path, ["smiles", "y", "split"]).items():
        try:
            fingerprint(row["smiles"])
        except ValueError as error:
            raise BrokenFileError(cell_in(path, line, "smiles"), str(error)) from None
        value = parse_number(path, line, "y", row["y"]) + 9  # from nanomoles to moles
        if not isnan(value):
            for_validation = _is_for_validation(row["smiles"]) if by_scaffold else row["split"] != "train"
            values_by_split["val" if for_validation else "train"][row["smiles"]] = value
    return values_by_split
