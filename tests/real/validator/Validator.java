import java.util.Locale;
import java.util.Set;
import org.hl7.fhir.r5.utils.validation.constants.ReferenceValidationPolicy;
import org.hl7.fhir.utilities.FhirPublication;
import org.hl7.fhir.utilities.TimeTracker;
import org.hl7.fhir.utilities.http.ManagedWebAccess;
import org.hl7.fhir.validation.ValidationEngine;
import org.hl7.fhir.validation.http.FhirValidatorHttpService;
import org.hl7.fhir.validation.instance.advisor.BasePolicyAdvisorForFullValidation;
import org.hl7.fhir.validation.service.StandAloneValidatorFetcher;
import org.hl7.fhir.validation.service.model.InstanceValidatorParameters;

/**
 * HL7's validator for R4 as its command line runs it in server mode, without a terminology server, for
 * tests/real/test_validator.py.
 *
 * <p>Engine and HTTP service are the validator's own; what is here is what its command "server" does, with the versions
 * of HL7's packages that are there. Run as a source file with the jars on the class path (validator/pom.xml names them)
 * and the packages in the package cache of {@code user.home}: {@code java -Duser.home=HOME -cp 'lib/*' Validator.java}.
 * It picks a free port of loopback and prints one line "listening PORT"; it ends when its standard input does, and
 * reaches nothing outside.
 */
public class Validator {

    static ValidationEngine engine() throws Exception {
        ValidationEngine engine = new ValidationEngine.ValidationEngineBuilder()
            .withDefaultInstanceValidatorParameters(new InstanceValidatorParameters())
            .withVersion("4.0")
            .withTimeTracker(new TimeTracker())
            .withThoVersion("7.0.1")
            .withExtensionsVersion("5.3.0-ballot-tc1")
            .fromSource("hl7.fhir.r4.core#4.0.1");
        engine.setTerminologyServer(null, null, FhirPublication.R4, true);
        engine.setLocale(Locale.ENGLISH);
        StandAloneValidatorFetcher fetcher =
            new StandAloneValidatorFetcher(engine.getPcm(), engine.getContext(), engine);
        fetcher.setReferencePolicy(ReferenceValidationPolicy.IGNORE);
        engine.setFetcher(fetcher);
        engine.getContext().setLocator(fetcher);
        engine.setPolicyAdvisor(fetcher);
        fetcher.setPolicyAdvisor(new BasePolicyAdvisorForFullValidation(fetcher.getReferencePolicy(), Set.of()));
        engine.prepare();
        engine.setLogValidationProgress(false);
        return engine;
    }

    public static void main(String[] arguments) throws Exception {
        ManagedWebAccess.setAccessPolicy(ManagedWebAccess.WebAccessPolicy.PROHIBITED);
        FhirValidatorHttpService service = new FhirValidatorHttpService(engine(), true, 0);
        service.startServer();
        System.out.println("listening " + service.getInetAddress().getPort());
        while (System.in.read() >= 0) {
            // Whoever started us holds the other end.
        }
        System.exit(0);
    }
}
