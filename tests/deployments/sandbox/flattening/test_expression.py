"""FHIRPath in the columns of a view: navigation, functions, types, and primitives with extensions."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.sandbox.flattening.problem import ResourceError
from tests.conftest import examples
from tests.deployments.sandbox.flattening.support import Json, column, columns, one, rows, text, value, view

PATIENT: Json = {
    "resourceType": "Patient",
    "id": "p",
    "active": True,
    "gender": "female",
    "birthDate": "1970-05-30",
    "deceasedBoolean": False,
    "multipleBirthInteger": 2,
    "name": [
        {"use": "usual", "family": "A", "given": ["x", "y"], "period": {"start": "2000-01-01"}},
        {"use": "official", "family": "B", "given": ["z"]},
    ],
    "identifier": [{"system": "urn:a", "value": "1"}, {"system": "urn:b", "value": "2"}],
    "extension": [
        {"url": "http://e/nested", "extension": [{"url": "code", "valueCoding": {"code": "c1"}}, {"url": "x"}]},
        {"url": "http://e/plain", "valueString": "first"},
        {"url": "http://e/plain", "valueString": "second"},
    ],
    "contained": [{"resourceType": "Organization", "id": "o", "name": "Org"}],
    "managingOrganization": {"reference": "Organization/1"},
}
OBSERVATION: Json = {
    "resourceType": "Observation",
    "id": "o",
    "status": "final",
    "valueQuantity": {"value": 7, "unit": "mg", "system": "http://unitsofmeasure.org", "code": "mg"},
    "component": [{"code": {"text": "a"}, "valueString": "s"}, {"code": {"text": "b"}, "valueInteger": 4}],
    "referenceRange": [{"low": {"value": 1}, "high": {"value": 9}}],
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        # navigation
        ("id", "p"),
        ("Patient.id", "p"),
        ("$this.id", "p"),
        ("Observation.id", None),
        ("name.period.start", "2000-01-01"),
        ("name[1].family", "B"),
        ("name[7].family", None),
        ("name.first().family", "A"),
        ("name.last().family", "B"),
        ("name.first().given.first()", "x"),
        ("(name.first()).family", "A"),
        ("nonsense.below", None),
        ("`id`", "p"),
        ("managingOrganization", {"reference": "Organization/1"}),
        # filters
        ("name.where(use = 'official').family", "B"),
        ("name.where(use = 'official' and family = 'B').given", "z"),
        ("name.where(use = 'official').where(family = 'A').given", None),
        ("name.where('official' = use).family", "B"),
        ("name.where(given = 'z').family", "B"),
        ("name.where(given = 'x').family", None),
        ("name.where(false).family", None),
        ("name.where($index = 1).family", "B"),
        ("name.where(use in ('nickname' | 'official')).family", "B"),
        ("identifier.where(system = 'urn:b').value", "2"),
        ("name.exists(use = 'official')", True),
        ("name.select(given.first()).last()", "z"),
        # existence, logic
        ("name.exists()", True),
        ("photo.exists()", False),
        ("photo.empty()", True),
        ("name.count()", 2),
        ("name.exists() and photo.exists()", False),
        ("name.exists() or photo.exists()", True),
        ("active xor true", False),
        ("photo.exists() implies false", True),
        ("active.not()", False),
        ("birthDate.hasValue()", True),
        ("photo.url.hasValue()", False),
        ("name.all(family.exists())", True),
        # strings
        ("name.given.join(',')", "x,y,z"),
        ("name.given.join()", "xyz"),
        ("photo.url.join(',')", ""),
        ("{}.join()", ""),
        ("name.where(use = 'nobody').given.join()", ""),
        ("name.first().family & ', ' & name.first().given.first()", "A, x"),
        ("gender.upper()", "FEMALE"),
        ("gender.startsWith('fe')", True),
        ("gender.length()", 6),
        ("gender.substring(2)", "male"),
        ("'it\\'s'", "it's"),
        ("'urn:oid:1.2'.replace('urn:oid:', '')", "1.2"),
        # numbers
        ("multipleBirth.ofType(integer) + 1", 3),
        ("1 + 2 * 3", 7),
        ("-(1)", -1),
        ("iif(gender = 'female', 'f', 'm')", "f"),
        ("1 / 0", None),
        ("3 'mg'", {"value": 3, "unit": "mg"}),
        # types
        ("deceased.ofType(boolean)", False),
        ("deceased", False),
        ("deceased.ofType(dateTime)", None),
        ("multipleBirth.ofType(integer)", 2),
        ("multipleBirth is integer", True),
        ("contained.ofType(Organization).name", "Org"),
        ("contained.ofType(Patient).name", None),
        # extensions
        ("extension('http://e/nested').extension('code').value.ofType(Coding).code", "c1"),
        ("extension.where(url = 'http://e/nested').extension.where(url = 'code').value.ofType(Coding).code", "c1"),
        ("extension('http://e/other').value.ofType(string)", None),
        ("extension('http://e/plain').first().value.ofType(string)", "first"),
        # dates
        ("birthDate = @1970-05-30", True),
        ("birthDate < @1970-06-01", True),
        ("@2020-02-29", "2020-02-29"),
        # keys
        ("getResourceKey()", "Patient/p"),
        ("managingOrganization.getReferenceKey()", "Organization/1"),
        ("managingOrganization.getReferenceKey(Organization)", "Organization/1"),
        ("managingOrganization.getReferenceKey(Patient)", None),
        ("contained.getResourceKey()", "Organization/o"),
        ("name.first().getResourceKey()", None),
    ],
)
def test_a_path_of_a_patient(path: str, expected: Any) -> None:
    assert value(path, PATIENT) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("value.ofType(Quantity).value", 7),
        ("value.ofType(Quantity).unit", "mg"),
        ("value.ofType(FHIR.Quantity).code", "mg"),
        ("value.ofType(string)", None),
        ("(value as Quantity).value", 7),
        ("value.value", 7),
        ("value.value > 6.5", True),
        ("component.where(code.text = 'a').value.ofType(string)", "s"),
        ("component.where(code.text = 'b').value.ofType(integer)", 4),
        ("component.value.ofType(string)", "s"),
        ("value.ofType(Quantity).value >= referenceRange.low.value", True),
        ("value.ofType(Quantity).value in (7 | 8)", True),
        ("where(value.ofType(Quantity).value > 6).exists()", True),
        ("referenceRange.low.value + referenceRange.high.value", 10),
        ("referenceRange.low.value - referenceRange.high.value", -8),
        ("referenceRange.low.value * referenceRange.high.value", 9),
        ("referenceRange.high.value / 2", 4.5),
        ("referenceRange.low.value = referenceRange.high.value", False),
        ("referenceRange.low.value <= referenceRange.high.value", True),
        ("component[1].value", 4),
    ],
)
def test_a_path_of_an_observation(path: str, expected: Any) -> None:
    assert value(path, OBSERVATION) == expected


def test_extension_finds_every_one_with_its_url() -> None:
    definition = view({"column": [column("x", "extension('http://e/plain').value.ofType(string)", collection=True)]})
    assert rows(definition, PATIENT) == [{"x": ["first", "second"]}]


def test_for_each_keeps_the_types_of_what_it_found() -> None:
    component = {
        "forEach": "component",
        "column": [column("s", "value.ofType(string)"), column("i", "value as integer")],
    }
    assert rows(view(component, resource="Observation"), OBSERVATION) == [{"s": "s", "i": None}, {"s": None, "i": 4}]
    nested = {"forEach": "extension.extension", "column": [column("c", "value.ofType(Coding).code"), column("url")]}
    assert rows(view(nested), PATIENT) == [{"c": "c1", "url": "code"}, {"c": None, "url": "x"}]
    contained = {
        "forEach": "contained",
        "column": [column("type", "resourceType"), column("name", "Organization.name")],
    }
    assert rows(view(contained), PATIENT) == [{"type": "Organization", "name": "Org"}]


def test_single_of_several_is_an_error() -> None:
    assert value("name.where(use = 'usual').single().family", PATIENT) == "A"
    with pytest.raises(ResourceError):
        value("name.single().family", PATIENT)


def test_what_the_library_cannot_evaluate_is_an_error_without_data() -> None:
    with pytest.raises(ResourceError) as caught:
        value("gender > 1", PATIENT)
    assert "gender > 1" in caught.value.diagnostics
    assert "female" not in caught.value.diagnostics


class TestPrimitivesWithExtensions:
    MASKED: ClassVar[Json] = {
        "resourceType": "Patient",
        "id": "p",
        "gender": "other",
        "_gender": {"extension": [{"url": "http://e/amtlich", "valueCoding": {"code": "D"}}]},
        "_birthDate": {"extension": [{"url": "http://e/absent", "valueCode": "masked"}]},
        "name": [
            {
                "family": "A",
                "_family": {"id": "f", "extension": [{"url": "http://e/own", "valueString": "A"}]},
                "given": ["x", None],
                "_given": [None, {"extension": [{"url": "http://e/absent", "valueCode": "masked"}]}],
            }
        ],
    }

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("gender", "other"),
            ("gender = 'other'", True),
            ("gender.count()", 1),
            ("gender.upper()", "OTHER"),
            ("birthDate", None),
            ("birthDate = @2000-01-01", None),
            ("birthDate.hasValue()", False),
            ("name.given", "x"),
            ("name.given.join(',')", "x"),
            ("name.where(family = 'A').given.first()", "x"),
            ("name.select(family & given.first())", "Ax"),
        ],
    )
    def test_their_values_are_as_without(self, path: str, expected: Any) -> None:
        assert value(path, self.MASKED) == expected

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("gender.extension('http://e/amtlich').value.ofType(Coding).code", "D"),
            ("gender.extension.where(url = 'http://e/amtlich').value.ofType(Coding).code", "D"),
            ("birthDate.extension('http://e/absent').value.ofType(code)", "masked"),
            ("name.family.extension('http://e/own').value.ofType(string)", "A"),
            ("name.given.extension('http://e/absent').value.ofType(code)", "masked"),
        ],
    )
    def test_their_extensions_can_be_asked_for(self, path: str, expected: Any) -> None:
        assert value(path, self.MASKED) == expected

    def test_below_for_each_too(self) -> None:
        own = column("own", "family.extension('http://e/own').value.ofType(string)")
        clause = {"forEach": "name", "column": [column("family"), column("is", "family = 'A'"), own]}
        assert rows(view(clause), self.MASKED) == [{"family": "A", "is": True, "own": "A"}]
        given = {"forEach": "name.given", "column": [column("given", "$this")]}
        assert rows(view(given), self.MASKED) == [{"given": "x"}]

    @pytest.mark.parametrize(
        ("each", "expected"),
        [
            ("name.given", [("a", None), ("b", "B")]),
            ("name.given.where($this = 'b')", [("b", "B")]),
            ("name.where(use = 'official').given", []),
            ("birthDate", [("2000-01-01", "day")]),
            ("gender | birthDate", [("other", None), ("2000-01-01", "day")]),
        ],
    )
    def test_for_each_over_primitives_has_the_extensions_of_each(self, each: str, expected: list[Any]) -> None:
        def noted(text: str) -> Json:
            return {"extension": [{"url": "u", "valueString": text}]}

        patient = self.MASKED | {
            "birthDate": "2000-01-01",
            "_birthDate": noted("day"),
            "name": [{"given": [None, "a", "b"], "_given": [noted("-"), None, noted("B")]}],
        }
        asked = [column("x", "$this"), column("note", "extension('u').value.ofType(string)"),
                 column("long", "extension.where(url = 'u').value.ofType(string)")]  # fmt: skip
        found = rows(view({"forEach": each, "column": asked}), patient)
        assert found == [{"x": value, "note": note, "long": note} for value, note in expected]
        upper = view({"forEach": each, "column": [column("x", "upper()")]})
        assert rows(upper, patient) == [{"x": value.upper()} for value, _ in expected]

    @pytest.mark.parametrize("path", ["name", "name.where(family = 'A')", "name.select($this)"])
    def test_a_whole_element_leaves_as_it_came(self, path: str) -> None:
        assert value(path, self.MASKED) == self.MASKED["name"][0]
        each = {"forEach": path, "column": [column("x", "$this")]}
        assert rows(view(each), self.MASKED) == [{"x": self.MASKED["name"][0]}]

    def test_below_nested_for_each_too(self) -> None:
        nested = {"forEach": "name", "select": [{"forEach": "family", "column": [column("x", "$this = 'A'")]}]}
        assert rows(view(nested), self.MASKED) == [{"x": True}]

    @pytest.mark.slow
    @settings(max_examples=examples(50), deadline=None)
    @given(st.data())
    def test_wherever_they_are_other_paths_give_the_same(self, data: st.DataObject) -> None:
        plain: Json = {
            "resourceType": "Observation",
            "id": "o",
            "status": "final",
            "code": {"coding": [{"system": "a", "code": "x", "display": "X"}, {"system": "b", "code": "y"}]},
            "effectiveDateTime": "2020-01-01",
            "component": [{"code": {"text": "b"}, "valueString": "s"}, {"valueQuantity": {"value": 7, "unit": "mg"}}],
        }
        dressed = json.loads(json.dumps(plain))
        companion = st.sampled_from([{"id": "x"}, {"extension": [{"url": "a", "valueString": "no"}]}])
        for each in [dressed, *dressed["code"]["coding"], *dressed["component"]]:
            for name in [key for key, item in each.items() if isinstance(item, str) and key != "resourceType"]:
                if data.draw(st.booleans()):
                    each[f"_{name}"] = data.draw(companion)
        paths = ("id", "status", "code.coding.where(system = 'a' and code = 'x').display", "code.coding[1].code")
        paths += (
            "code.where(coding.code = 'y').coding.code",
            "effective.ofType(dateTime)",
            "component.value.ofType(string)",
        )
        paths += ("component.where(code.text = 'b').value", "component.value.ofType(Quantity).unit")
        columns = [column(f"c{number}", path, collection=True) for number, path in enumerate(paths)]
        definition = view({"column": columns}, resource="Observation")
        assert text(definition, dressed) == text(definition, plain)


class TestSpelling:
    @pytest.mark.parametrize(
        "number", ["1.50", "1.5", "1e3", "1.0E-7", "0.10", "-0.0", "100", "12345678901234567890.10"]
    )
    def test_a_decimal_leaves_as_it_came(self, number: str) -> None:
        observation = f'{{"resourceType":"Observation","valueQuantity":{{"value": {number}}}}}'
        definition = view(
            {
                "column": [
                    column("value", "value.ofType(Quantity).value"),
                    column("selected", "value.ofType(Quantity).select(value)"),
                    column("object", "value.ofType(Quantity)"),
                    column("list", "value.ofType(Quantity).value", collection=True),
                ]
            },
            resource="Observation",
        )
        assert text(definition, observation) == (
            f'{{"value":{number},"selected":{number},"object":{{"value":{number}}},"list":[{number}]}}\n'
        )

    def test_what_is_calculated_is_a_number(self) -> None:
        observation = '{"resourceType":"Observation","valueQuantity":{"value":1.50}}'
        definition = one("value.ofType(Quantity).value + 0.25", "Observation")
        assert text(definition, observation) == '{"x":1.75}\n'

    def test_text_leaves_verbatim(self) -> None:
        family = 'ä"\\\n\u2028€😀,;'
        assert value("name.family", {"resourceType": "Patient", "name": [{"family": family}]}) == family

    def test_booleans_are_booleans(self) -> None:
        assert text(one("active"), '{"resourceType":"Patient","active":false}') == '{"x":false}\n'


def test_an_expression_does_not_depend_on_those_before_it() -> None:
    for _ in range(2):
        assert rows(view({"column": columns("id")}), PATIENT) == [{"id": "p"}]
        assert value("contained.ofType(Organization).name", PATIENT) == "Org"
        assert value("multipleBirth is integer", PATIENT) is True
